"""Devices: which one a setting means."""

import re
import time

import pytest
import tensorflow as tf

from gradserve_server.scheduling.device import Device, resolve


@pytest.mark.parametrize("wanted", ["cpu", "cpu:0"])
def test_resolve_of_the_cpu_is_the_first(wanted: str) -> None:
    assert resolve(wanted) == "cpu:0"


def test_resolve_of_auto_prefers_a_gpu() -> None:
    assert resolve("auto") == ("gpu:0" if tf.config.list_logical_devices("GPU") else "cpu:0")


@pytest.mark.parametrize("wanted", ["cpu:9", "gpu:99"])
def test_resolve_of_a_device_that_is_not_there_names_those_that_are(wanted: str) -> None:
    with pytest.raises(ValueError, match=rf"device '{wanted}': there is no such device; wanted one of cpu:0"):
        resolve(wanted)


@pytest.mark.parametrize("wanted", ["tpu", "CPU", "cpu:", "cpu:-1", "cpu:x", "", "/cpu:0", "cpu:0 ", "gpu:0:1"])
def test_resolve_of_what_is_no_device_name_says_which_are(wanted: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"'cpu:N' or 'gpu:N', got {wanted!r}")):
        resolve(wanted)


async def test_device_computes_on_a_thread_of_its_name_that_places_ops_there() -> None:
    device = Device("cpu:0", clock=time.perf_counter)
    placed = await device.submit(lambda: (tf.constant(1.0) * 2.0).device).future
    assert placed.endswith("device:CPU:0")
    device.close(10.0)

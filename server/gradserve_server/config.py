"""Settings: command line, then ``GRADSERVE_*`` variables, then a TOML file (``--config``), then defaults."""

import os
import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator
from pydantic_settings import (
    BaseSettings,
    CliPositionalArg,
    CliSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from gradserve_server.logs import LogFormat, LogLevel
from gradserve_server.ops import NAME, GradientKind

ENV_PREFIX = "GRADSERVE_"
Port = Annotated[int, Field(ge=0, le=65535)]
Texts = Annotated[list[str], NoDecode]
"""Several texts; a variable of the environment separates them by commas."""


class Settings(BaseSettings):
    """Serves TensorFlow ops over gRPC: forward, and backward with any upstream gradient.

    Settings come from this command line, then from GRADSERVE_* variables, then from a TOML file, then from defaults.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        extra="forbid",
        frozen=True,
        cli_prog_name="gradserve-server",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_enforce_required=False,
        cli_hide_none_type=True,
        cli_shortcuts={
            "saved-models": "saved-model",
            "keras-models": "keras-model",
            "gradients": "gradient",
            "load-libraries": "load-library",
        },
    )

    modules: CliPositionalArg[Texts] = Field(
        default=[], description="Modules that define ops: paths that end in .py, or dotted names."
    )
    saved_models: Texts = Field(default=[], description="SavedModels to serve, each as NAME=DIR.")
    keras_models: Texts = Field(default=[], description="Keras models to serve, each as NAME=FILE.keras.")
    custom_objects: Texts = Field(
        default=[], description="Modules that hold layers and functions of the Keras models, and need define no op."
    )
    gradients: Texts = Field(
        default=[], description="Claims about gradients, each as NAME=exact, NAME=surrogate or NAME=unchecked."
    )
    load_libraries: Texts = Field(default=[], description="Libraries of compiled ops, loaded before all else.")
    config: Path | None = Field(default=None, description="TOML file with settings, under the names of these options.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(default=50051, description="Port to listen on; 0 lets the system choose.")
    metrics_host: str = Field(default="127.0.0.1", description="Address of /metrics.")
    metrics_port: Port = Field(default=9464, description="Port of /metrics; 0 lets the system choose.")
    device: str = Field(
        default="auto",
        description="Device for ops that name none: auto, cpu, gpu, cpu:N or gpu:N; auto prefers a GPU.",
    )
    gpu_memory_limit_bytes: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="Memory to reserve on each GPU at once; without it memory grows as needed."
    )
    bad_ops: Literal["stop", "skip"] = Field(
        default="stop", description="What an op that cannot be loaded does: stop the start, or be listed as failed."
    )
    check_gradients: Literal["refuse", "warn", "off"] = Field(
        default="refuse",
        description="What a start does with an op that claims an exact gradient and has a wrong one; off checks none.",
    )
    max_message_bytes: Annotated[int, Field(gt=0, lt=2**31)] = Field(
        default=64 * 2**20, description="Largest message, in and out."
    )
    max_rows: Annotated[int, Field(gt=0, lt=2**31)] = Field(
        default=4096, description="Most stacked output gradients, or rows of Jacobians, in one call."
    )
    max_queue_requests: Annotated[int, Field(gt=0)] = Field(
        default=1024, description="Most calls that wait for one device; more are refused, to be tried again."
    )
    max_queue_bytes: Annotated[int, Field(gt=0)] = Field(
        default=2**30, description="Most bytes of tensors that wait for one device."
    )
    max_batch_calls: Annotated[int, Field(gt=0)] = Field(
        default=32, description="Most calls that run as one, where an op has independent rows; 1 joins none."
    )
    max_batch_wait_microseconds: Annotated[int, Field(ge=0)] = Field(
        default=8000,
        description="Longest that a call waits for others to join it, while several callers are at work and more calls come.",
    )
    light_call_microseconds: Annotated[int, Field(ge=0)] = Field(
        default=2000,
        description="Small calls to a CPU that take up to so long run on the event loop; 0 leaves all to the device's thread.",
    )
    slow_call_milliseconds: Annotated[int, Field(ge=0)] = Field(
        default=20,
        description="Ops with calls to a CPU that take longer have a thread of their own; 0 leaves them among the others.",
    )
    deterministic: bool = Field(
        default=False, description="Whether equal requests get equal bits: calls are never joined."
    )
    max_compiled_shapes: Annotated[int, Field(gt=0)] = Field(
        default=64, description="Most sets of shapes for which XLA compiles one op; calls of others are refused."
    )
    max_call_seconds: Annotated[float, Field(gt=0)] = Field(
        default=600.0, description="Longest that a call may take, whatever deadline its caller gave."
    )
    reflection: bool = Field(default=True, description="Whether gRPC server reflection is served.")
    grace_seconds: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="How long calls under way may take to finish after SIGTERM."
    )
    log_level: LogLevel = Field(default="info", description="Least level that is logged.")
    log_format: LogFormat = Field(default="json", description="json for one object a line, console for people.")
    traceback: bool = Field(default=False, description="Whether a failed start prints the traceback of its cause.")

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|(cpu|gpu)(:\d+)?", value):
            raise ValueError("wanted auto, cpu, gpu, cpu:N or gpu:N")
        return value

    @field_validator(
        "modules", "saved_models", "keras_models", "custom_objects", "gradients", "load_libraries", mode="before"
    )
    @classmethod
    def _split_texts(cls, value: object) -> object:
        return [text.strip() for text in value.split(",") if text.strip()] if isinstance(value, str) else value

    @field_validator("saved_models", "keras_models", "gradients")
    @classmethod
    def _check_pairs(cls, texts: list[str]) -> list[str]:
        for name, value in map(split_pair, texts):
            if not NAME.fullmatch(name) or not value:
                raise ValueError(
                    "wanted NAME=VALUE, with 1 to 128 letters, digits, '_', '.' or '-' as the name, and no digit first"
                )
        return texts

    @field_validator("gradients")
    @classmethod
    def _check_kinds(cls, texts: list[str]) -> list[str]:
        unknown = [kind for _, kind in map(split_pair, texts) if kind not in get_args(GradientKind)]
        if unknown:
            raise ValueError(f"wanted {', '.join(get_args(GradientKind))} after the name")
        return texts

    @property
    def has_ops(self) -> bool:
        """Whether the settings name anything that may hold an op."""
        return bool(self.modules or self.saved_models or self.keras_models)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Orders the sources; the command line, which comes first, is added by ``load_settings``."""
        toml_file = _config_path(init_settings, env_settings)
        file_sources = [] if toml_file is None else [_toml_source(settings_cls, toml_file)]
        return (init_settings, env_settings, *file_sources)


def split_pair(text: str) -> tuple[str, str]:
    """Returns what stands before and after the first "=" of a setting such as NAME=DIR."""
    name, _, value = text.partition("=")
    return name, value


def load_settings(arguments: list[str]) -> Settings:
    """Reads the settings.

    Args:
        arguments: The command line, without the program's name.

    Raises:
        SystemExit: The command line is wrong (status 2, after a message), or it asked for help (status 0).
        ValueError: A value or a variable is wrong; ``pydantic.ValidationError`` is one.
        OSError: The TOML file cannot be read.
    """
    _refuse_unknown_variables()
    command_line = CliSettingsSource[Settings](Settings, cli_parse_args=arguments)
    return Settings(**command_line())


def _toml_source(settings_cls: type[BaseSettings], path: Path) -> TomlConfigSettingsSource:
    try:
        source = TomlConfigSettingsSource(settings_cls, path)
    except ValueError as error:
        raise ValueError(f"config: {path} is not TOML: {error}") from error
    if "config" in source.toml_data:
        raise ValueError(f"config: {path} names another file by 'config', which would not be read")
    return source


def _config_path(*sources: PydanticBaseSettingsSource) -> Path | None:
    for source in sources:
        path = source().get("config")
        if path is not None:
            if not Path(path).is_file():
                raise FileNotFoundError(f"config: no such file: {path}")
            return Path(path)
    return None


def _refuse_unknown_variables() -> None:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    unknown = sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known)
    if unknown:
        raise ValueError(
            f"no such settings: {', '.join(unknown)}; wanted some of {', '.join(sorted(known))} "
            "(Kubernetes sets some for a Service named gradserve: set enableServiceLinks to false)"
        )

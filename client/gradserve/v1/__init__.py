"""Generated from ``proto/gradserve/v1`` by ``make proto``; never edited by hand."""

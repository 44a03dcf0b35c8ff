"""remora: use an accelerator in another process or on another machine as if it were your own."""

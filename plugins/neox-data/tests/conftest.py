import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a script that started this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else all that tests start would ignore Ctrl-C, too

from neox_core.old_paths import install

install()

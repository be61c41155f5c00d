if __name__ != "specllama.engine":
    raise ImportError("this folder is the package specllama.engine")

"""Jobs of sandboxed processes, one folder for each job."""

"""Jobs for sandboxed processes: a folder for each job."""

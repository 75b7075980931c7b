"""Rules of advice on what a kernel copies between HBM and VMEM, one file per kind."""

"""What tests of distributed training need, for users as well."""

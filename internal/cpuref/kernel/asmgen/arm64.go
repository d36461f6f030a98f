package main

func arm64(out, stubs string) {}

package main

import (
	"cmp"

	"golang.org/x/sys/unix"
)

func osVersion() string {
	version, err := unix.Sysctl("kern.osproductversion")
	if err != nil {
		return "macOS"
	}
	build, _ := unix.Sysctl("kern.osversion")
	return "macOS " + version + " " + build
}

func cpuModel() string {
	model, _ := unix.Sysctl("machdep.cpu.brand_string")
	return cmp.Or(model, "unknown")
}

// translated tells whether Rosetta runs this program.
func translated() bool {
	n, err := unix.SysctlUint32("sysctl.proc_translated")
	return err == nil && n == 1
}

package main

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// loadAverage is of the last minute; nil where the system does not tell.
func loadAverage() *float64 {
	// struct loadavg of sys/resource.h: three uint32 in units of 1/fscale, and fscale, a long.
	raw, err := unix.SysctlRaw("vm.loadavg")
	if err != nil || len(raw) < 24 {
		return nil
	}
	scale := binary.LittleEndian.Uint64(raw[16:])
	if scale == 0 {
		return nil
	}
	v := float64(binary.LittleEndian.Uint32(raw)) / float64(scale)
	return &v
}

// watchOthers: macOS tells that to no program without privileges.
func watchOthers() func() *float64 { return func() *float64 { return nil } }

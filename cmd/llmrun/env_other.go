//go:build !darwin

package main

import (
	"cmp"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// osVersion is the distribution's name, and the kernel's release.
func osVersion() string {
	text, _ := os.ReadFile("/etc/os-release")
	name := cmp.Or(valueOf(string(text), "PRETTY_NAME", "="), runtime.GOOS)
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return name
	}
	return name + ", kernel " + unix.ByteSliceToString(u.Release[:])
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	return cmp.Or(valueOf(string(text), "model name", ":"), valueOf(string(text), "CPU part", ":"), "unknown")
}

// valueOf is the value of the first line with that key.
func valueOf(text, key, separator string) string {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, separator); ok && strings.TrimSpace(k) == key {
			return strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	return ""
}

// translated tells whether Rosetta runs this program.
func translated() bool { return false }

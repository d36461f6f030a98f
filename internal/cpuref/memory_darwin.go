package cpuref

import "golang.org/x/sys/unix"

// machineMemory is the size of the machine's memory in bytes; 0 if it is not known.
func machineMemory() uint64 {
	size, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return size
}

// LargePages: macOS has no such advice.
func LargePages([]byte) {}

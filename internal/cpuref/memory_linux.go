package cpuref

import "golang.org/x/sys/unix"

// machineMemory is the size of the machine's memory in bytes; 0 if it is not known.
func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

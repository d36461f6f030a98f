package cpuref

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// machineMemory is the size of the machine's memory in bytes; 0 if it is not known.
func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// LargePages asks for pages of 2 MiB, if b has room for some and was not written yet. What is long is read more slowly in small ones, since their addresses come
// from memory too.
func LargePages(b []byte) {
	const page = 2 << 20
	if len(b) < 2*page {
		return
	}
	first := int(-uintptr(unsafe.Pointer(&b[0])) % page)
	_ = unix.Madvise(b[first:][:(len(b)-first)/page*page], unix.MADV_HUGEPAGE) // a kernel without them refuses
}

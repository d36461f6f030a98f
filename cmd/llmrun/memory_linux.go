package main

import (
	"bufio"
	"fmt"
	"os"
)

// peakBytes is the most memory that the process ever had resident. Getrusage would not do: it begins with what the parent had.
func peakBytes() int64 {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kilobytes int64
		if n, _ := fmt.Sscanf(lines.Text(), "VmHWM: %d kB", &kilobytes); n == 1 {
			return kilobytes << 10
		}
	}
	return 0
}

//go:build !darwin

package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// loadAverage is of the last minute; nil where the system does not tell.
func loadAverage() *float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	v := 0.0
	if _, err := fmt.Sscan(string(text), &v); err != nil {
		return nil
	}
	return &v
}

// watchOthers gives a function that tells how many cores other programs, and other guests of the host, used since, on average.
func watchOthers() func() *float64 {
	began, others := time.Now(), othersSeconds()
	return func() *float64 {
		now := othersSeconds()
		if others == nil || now == nil {
			return nil
		}
		cores := max(0, (*now-*others)/time.Since(began).Seconds())
		return &cores
	}
}

// othersSeconds is what all cores have done since they were started, but for this process.
func othersSeconds() *float64 {
	const hertz = 100 // of /proc/stat, on every Linux that Go runs on
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var user, nice, system, idle, wait, irq, softirq, steal float64
	if _, err := fmt.Sscanf(line, "cpu %g %g %g %g %g %g %g %g", &user, &nice, &system, &idle, &wait, &irq, &softirq, &steal); err != nil {
		return nil
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return nil
	}
	seconds := (user+nice+system+irq+softirq+steal)/hertz - float64(own.Utime.Nano()+own.Stime.Nano())/1e9
	return &seconds
}

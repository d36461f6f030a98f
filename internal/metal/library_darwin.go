package metal

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// openLibraries loads Apple's frameworks. Without CoreGraphics a command-line program is given no device.
func openLibraries() (source, error) {
	if runtime.GOARCH != "arm64" {
		return source{}, &UnavailableError{errors.New("metal: want Apple silicon, this program is built for " + runtime.GOARCH),
			"use the darwin/arm64 build; Rosetta's GPU view is not trusted"}
	}
	if Validates() { // Metal looks when it is loaded
		os.Setenv("MTL_DEBUG_LAYER", "1")
		os.Setenv("MTL_SHADER_VALIDATION", "1")
	}
	var s source
	for _, path := range []string{
		"/System/Library/Frameworks/Foundation.framework/Foundation",
		"/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics",
		"/System/Library/Frameworks/Metal.framework/Metal",
		"/usr/lib/libobjc.A.dylib",
	} {
		h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			return s, fmt.Errorf("metal: load %s: %w", path, err)
		}
		s.handles = append(s.handles, h)
	}
	return s, nil
}

// validate tells whether Metal's own validation was asked for.
func validate(source) (on bool, err error) { return os.Getenv("MTL_SHADER_VALIDATION") == "1", nil }

// systemVersion is that of macOS: "14.5" and 14.
func systemVersion() (version string, major int) {
	version, err := unix.Sysctl("kern.osproductversion")
	if err == nil {
		fmt.Sscanf(version, "%d", &major)
	}
	return version, major
}

// openMPS loads MetalPerformanceShaders, too.
func openMPS(s source) (source, error) {
	const path = "/System/Library/Frameworks/MetalPerformanceShaders.framework/MetalPerformanceShaders"
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return s, fmt.Errorf("metal: load %s: %w", path, err)
	}
	s.handles = append(s.handles, h)
	return s, nil
}

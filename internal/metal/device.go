package metal

import (
	"errors"
	"fmt"
	"os"
)

// UnavailableError says that this machine has no Metal that we could use.
type UnavailableError struct {
	Err    error
	Advice string // what would help
}

func (e *UnavailableError) Error() string { return e.Err.Error() }
func (e *UnavailableError) Unwrap() error { return e.Err }

// Hint is what would help.
func (e *UnavailableError) Hint() string { return e.Advice }

// Info describes an open device and how its shaders were compiled, as read back from Metal.
type Info struct {
	Device          string
	Host            bool   // hostmetal, not Apple's Metal
	Compiler        string // the host device's C++ compiler, else empty
	Cache           string // the folder of the host device's compiled shaders, else empty
	Family          int    // the highest MTLGPUFamilyApple that the device supports; 7 is M1
	LanguageVersion string // of MSL
	FastMath        bool
	MathMode        string // "safe", "relaxed" or "fast"; empty where the system has no such option (before macOS 15)
	Functions       string // "precise" or "fast": what an unqualified tanh means; empty like MathMode
	Fuse            bool   // adjacent ops run as fused kernels
	Validate        bool   // the device checks all that it is asked to do, and is slow
	Gemm            string // who multiplies matrices: "own" kernels, or "mps"
	MaxBuffer       int    // bytes
	WorkingSet      int    // bytes; what Metal recommends to stay under
	Warnings        []string
}

// openDevice gives the default device, or else the first one.
func openDevice() (device, error) {
	d := device{owned{object{defaultDevice()}}}
	if d.isNil() {
		all := devices()
		defer all.release()
		if all.isNil() || all.count() == 0 {
			return device{}, &UnavailableError{errors.New("metal: no device"), "a Mac's GPU is not visible in some virtual machines and sandboxes"}
		}
		d = device{all.at(0).retain()}
	}
	if err := refuse(d); err != nil {
		d.release()
		return device{}, err
	}
	return d, nil
}

// refuse names what the backend cannot do without: memory that CPU and GPU share, and the simdgroups of Apple's GPUs.
func refuse(d device) error {
	const advice = "the backend needs Apple silicon, M1 or later"
	if !d.hasUnifiedMemory() {
		return &UnavailableError{fmt.Errorf("metal: %s: want unified memory, the device has none", d.name()), advice}
	}
	if !d.supportsFamily(familyApple7) {
		return &UnavailableError{fmt.Errorf("metal: %s: want GPU family Apple7 or later", d.name()), advice}
	}
	return nil
}

// refuseBFloat names what bfloat needs beside: the family Metal3, and MSL 3.1, which came with macOS 14 (Metal Shading Language
// Specification, §2.1; Metal Feature Set Tables).
func refuseBFloat(d device) error {
	const advice = "--compute-type float16, or float32"
	if !d.supportsFamily(familyMetal3) {
		return &UnavailableError{fmt.Errorf("metal: bfloat16 activations: want GPU family Metal3, %s has it not", d.name()), advice}
	}
	if version, major := systemVersion(); major < 14 {
		return &UnavailableError{fmt.Errorf("metal: bfloat16 activations: want macOS 14 or later, this is %s", version), advice}
	}
	return nil
}

func describe(d device, s source) Info {
	info := Info{Device: d.name(), Host: s.host, Compiler: s.compiler, Cache: s.cache, Gemm: "own", MaxBuffer: d.maxBufferLength(), WorkingSet: d.workingSet()}
	for info.Family = familyApple7 - familyApple; d.supportsFamily(familyApple + info.Family + 1); info.Family++ {
	}
	if info.Device == "Apple Paravirtual device" {
		info.Warnings = append(info.Warnings, "the GPU is a virtual machine's")
	}
	for _, name := range []string{"MTL_DEBUG_LAYER", "MTL_SHADER_VALIDATION"} {
		if v := os.Getenv(name); v != "" && v != "0" && !s.host {
			info.Warnings = append(info.Warnings, name+" is set: Metal checks what it is asked to do, and is slow")
		}
	}
	return info
}

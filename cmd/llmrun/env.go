package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmrun/internal/metal"
	"llmrun/internal/num"
)

func newEnvCommand(a *app) *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use: "env", Short: "print what llmrun found on this machine", Args: noArguments("llmrun help"),
		RunE: func(*cobra.Command, []string) error {
			m := lookAround()
			if asJSON {
				return printJSON(a.stdout, m)
			}
			return m.print(a.stdout)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

// machine is what env prints, and its JSON.
type machine struct {
	Schema   string      `json:"schema"`
	Version  string      `json:"version"`
	System   string      `json:"system"` // linux/amd64
	OS       string      `json:"os"`     // its name and version
	Go       string      `json:"go"`
	CPU      cpuFacts    `json:"cpu"`
	Metal    *metalFacts `json:"metal"`       // null: none
	NoMetal  string      `json:"unavailable"` // why there is no Metal
	Cache    string      `json:"cache"`       // of the host device's libraries; empty where it is not in use
	Warnings []string    `json:"warnings"`    // what is known to go wrong on machines like this one
}

type cpuFacts struct {
	Model      string   `json:"model"`
	Cores      int      `json:"cores"`
	GOMAXPROCS int      `json:"gomaxprocs"`
	Threads    int      `json:"threads"` // of the CPU reference, where no flag says otherwise
	Features   []string `json:"features"`
	Kernels    string   `json:"kernels"` // of the CPU reference
	Available  []string `json:"kernels_available"`
}

type metalFacts struct {
	Device     string `json:"device"`
	Host       bool   `json:"host"` // the host device, not Apple's Metal
	Compiler   string `json:"compiler,omitempty"`
	Family     string `json:"family"`
	Language   string `json:"language"`
	FastMath   bool   `json:"fast_math"`
	MathMode   string `json:"math_mode"`
	Functions  string `json:"functions"`
	MaxBuffer  int    `json:"max_buffer_bytes"`
	WorkingSet int    `json:"working_set_bytes"`
}

// lookAround opens Metal as a run would, and closes it.
func lookAround() machine {
	m := lookAtMachine()
	b, err := metal.Open(metal.Options{Activations: num.Float32})
	if err != nil {
		m.NoMetal = err.Error()
		var hinted interface{ Hint() string }
		if errors.As(err, &hinted) && hinted.Hint() != "" {
			m.Warnings = append(m.Warnings, "without Metal, compare has no candidate: "+hinted.Hint())
		}
		return m
	}
	defer b.Close()
	i := b.Info()
	m.Metal = metalFactsOf(i)
	m.Cache = i.Cache
	m.Warnings = append(m.Warnings, i.Warnings...)
	return m
}

// lookAtMachine leaves Metal alone.
func lookAtMachine() machine {
	m := machine{Schema: "llmrun.env/1", Version: version(), System: runtime.GOOS + "/" + runtime.GOARCH, OS: osVersion(), Go: runtime.Version(),
		Warnings: []string{}}
	m.CPU, m.Warnings = lookAtCPU(m.Warnings)
	return m
}

func metalFactsOf(i metal.Info) *metalFacts {
	return &metalFacts{i.Device, i.Host, i.Compiler, fmt.Sprint("Apple", i.Family), i.LanguageVersion, i.FastMath, i.MathMode, i.Functions, i.MaxBuffer, i.WorkingSet}
}

func (m machine) print(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	line := func(name, format string, values ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", values...) }
	line("llmrun", "%s", m.Version)
	line("system", "%s, %s, %s", m.System, m.OS, m.Go)
	line("cpu", "%s, %d cores, %s", m.CPU.Model, m.CPU.Cores, strings.Join(m.CPU.Features, " "))
	line("cpu reference", "%s of %s, %d threads", m.CPU.Kernels, strings.Join(m.CPU.Available, " and "), m.CPU.Threads)
	if g := m.Metal; g == nil {
		line("metal", "unavailable: %s", m.NoMetal)
	} else {
		if g.Host {
			line("metal", "host device, %s", g.Compiler)
		} else {
			line("metal", "%s", g.Device)
		}
		line("metal family", "%s", g.Family)
		line("metal language", "%s", g.Language)
		line("metal math", "%s", strings.TrimSpace(fmt.Sprintf("fast math %v %s %s", g.FastMath, g.MathMode, g.Functions)))
		line("metal memory", "longest buffer %.1f GB, working set %.1f GB", float64(g.MaxBuffer)/1e9, float64(g.WorkingSet)/1e9)
	}
	if m.Cache != "" {
		line("cache", "%s", m.Cache)
	}
	for _, warning := range m.Warnings {
		line("warning", "%s", warning)
	}
	return w.Flush()
}

// describeMetal is what reports say of the device, as name and value.
func describeMetal(i metal.Info) [][2]string {
	device := i.Device
	if i.Host {
		device = "host device, " + i.Compiler
	}
	lines := [][2]string{
		{"metal", device},
		{"metal gemm", i.Gemm},
		{"metal language", i.LanguageVersion},
		{"metal math", strings.TrimSpace(fmt.Sprintf("fast math %v %s %s", i.FastMath, i.MathMode, i.Functions))},
	}
	if !i.Fuse {
		lines = append(lines, [2]string{"metal fuse", "off"})
	}
	for _, warning := range i.Warnings {
		lines = append(lines, [2]string{"warning", warning})
	}
	return lines
}

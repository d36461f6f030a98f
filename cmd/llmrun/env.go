package main

import (
	"fmt"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmrun/internal/metal"
	"llmrun/internal/num"
)

func newEnvCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "env", Short: "print what llmrun found on this machine", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			defer w.Flush()
			fmt.Fprintf(w, "llmrun\t%s\n", version())
			fmt.Fprintf(w, "system\t%s/%s, %s\n", runtime.GOOS, runtime.GOARCH, runtime.Version())
			fmt.Fprintf(w, "cpu reference\tplain Go, %d threads\n", runtime.NumCPU())
			b, err := metal.Open(metal.Options{Activations: num.Float32})
			if err != nil {
				fmt.Fprintf(w, "metal\tunavailable: %v\n", err)
				return nil
			}
			defer b.Close()
			for _, line := range describeMetal(b.Info()) {
				fmt.Fprintf(w, "%s\t%s\n", line[0], line[1])
			}
			return nil
		},
	}
}

// describeMetal is what reports say of the device, as name and value.
func describeMetal(i metal.Info) [][2]string {
	device := i.Device
	if i.Host {
		device = "host device, " + i.Compiler
	}
	lines := [][2]string{
		{"metal", device},
		{"metal language", i.LanguageVersion},
		{"metal math", strings.TrimSpace(fmt.Sprintf("fast math %v %s %s", i.FastMath, i.MathMode, i.Functions))},
	}
	for _, warning := range i.Warnings {
		lines = append(lines, [2]string{"warning", warning})
	}
	return lines
}

// Command llmrun compares what two backends make of one converted language model, op by op.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

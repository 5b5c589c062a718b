// Reads Compose files as Compose itself does, with its library, and prints their services.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	for _, file := range os.Args[1:] {
		options, err := cli.NewProjectOptions([]string{file})
		if err == nil {
			project, loadErr := options.LoadProject(context.Background())
			if err = loadErr; err == nil {
				fmt.Println(file, project.ServiceNames())
			}
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			os.Exit(1)
		}
	}
}

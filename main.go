// Command sidecarset-operator decides which sidecars go into which Pods, and
// inserts them while API servers create the Pods. Package cmd/operator has its
// flags and puts its parts together.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/sidecarset/operator/cmd/operator"
)

// version is set by the build.
var version = "dev"

func main() {
	options, err := operator.ParseOptions(os.Args[1:], os.Getenv)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sidecarset-operator:", err)
		os.Exit(2)
	}
	if options.Version {
		fmt.Println("sidecarset-operator", version)
		return
	}
	if err := operator.Run(ctrl.SetupSignalHandler(), version, options); err != nil {
		ctrl.Log.Error(err, "Stopped")
		os.Exit(1)
	}
}

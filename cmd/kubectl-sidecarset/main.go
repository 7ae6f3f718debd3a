// Command kubectl-sidecarset is a plugin of kubectl. It says what SidecarSets would do to Pods,
// what they have done, and why, with the engine of the operator's webhook.
package main

import (
	"os"

	"k8s.io/klog/v2"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/cli"
)

// version is set when the plugin is built.
var version = "dev"

func main() {
	klog.SetLogger(klog.Logger{}) // nowhere: client-go logs what it returns as an error, too
	os.Exit(cli.Run(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}, version))
}

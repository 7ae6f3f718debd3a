// Command kube is the whole Kubernetes control plane in one file: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and kubectl.
// Which of them runs is decided by the name it is called by (through a link),
// or by its first argument:
//
//	kube kube-apiserver --help
//
// One file is built and linked once; six would cost six times the disk and
// most of the linking time. Each component still runs as a process of its own.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJobs may name a time zone, and the machine may lack the database.

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl: credential plugins
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components maps the name of each component to what runs it. A component
// reads os.Args as if it were the only program in the file, and returns the
// exit code.
var components = map[string]func() int{
	"etcd": func() int {
		etcdmain.Main(os.Args) // exits by itself when it fails
		return 0
	},
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() int { return cli.Run(kubeletCommand()) },
	"kubectl":                 runKubectl,
}

func main() {
	run, ok := components[filepath.Base(os.Args[0])]
	if !ok && len(os.Args) > 1 {
		if run, ok = components[os.Args[1]]; ok {
			os.Args = os.Args[1:]
		}
	}
	if !ok {
		fmt.Fprintf(os.Stderr, "usage: kube COMPONENT [ARGUMENT...], where COMPONENT is one of %s\n", names())
		os.Exit(2)
	}
	os.Exit(run())
}

// kubeletCommand calls the kubelet's constructor, which takes a context since
// Kubernetes 1.34.
func kubeletCommand() *cobra.Command {
	switch construct := any(kubelet.NewKubeletCommand).(type) {
	case func() *cobra.Command:
		return construct()
	case func(context.Context) *cobra.Command:
		return construct(context.Background())
	default:
		panic(fmt.Sprintf("the kubelet's constructor is a %T, which this program does not know", construct))
	}
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints and exits with kubectl's own code
	}
	return 0
}

func names() string {
	return strings.Join(slices.Sorted(maps.Keys(components)), ", ")
}

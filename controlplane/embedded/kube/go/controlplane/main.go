// Command kube-control-plane carries etcd and the three Kubernetes servers in one
// file: they share most of their code, and one file links and caches far quicker
// than four. The first argument says which server this process is.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const usage = "usage: kube-control-plane etcd|apiserver|controllers|scheduler [flags], or certify"

// Building a command registers signal handlers and feature gates for the whole
// process, so nothing but the chosen one may be built.
func command(server string) *cobra.Command {
	switch server {
	case "apiserver":
		return apiserver.NewAPIServerCommand()
	case "controllers":
		return controllers.NewControllerManagerCommand()
	case "scheduler":
		return scheduler.NewSchedulerCommand()
	}
	return nil
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	server := os.Args[1]
	os.Args = os.Args[1:]
	switch server {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "certify":
		if err := certify(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	chosen := command(server)
	if chosen == nil {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	os.Exit(cli.Run(chosen))
}

// Command control-plane contains the components of a Kubernetes control plane, kwok in the role of every kubelet, and
// kubectl. One binary links their common packages once. The first argument selects the component.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of clients
	_ "k8s.io/component-base/metrics/prometheus/version"  // metrics of the version
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
)

var components = map[string]func() error{
	"etcd":                    func() error { etcdmain.Main(os.Args); return nil },
	"kube-apiserver":          func() error { return cli.RunNoErrOutput(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() error { return cli.RunNoErrOutput(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() error { return cli.RunNoErrOutput(scheduler.NewSchedulerCommand()) },
	"kwok":                    runKwok,
	"kubectl":                 runKubectl,
	"key":                     printKey,
	"ready":                   awaitReady,
}

func main() {
	if len(os.Args) < 2 || components[os.Args[1]] == nil {
		names := strings.Join(slices.Sorted(maps.Keys(components)), " | ")
		fmt.Fprintln(os.Stderr, "usage: control-plane", names, "[ARGUMENT...]")
		os.Exit(2)
	}
	run := components[os.Args[1]]
	os.Args = os.Args[1:] // a component reads its arguments there
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
}

func runKubectl() error {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints the error and exits
	}
	return nil
}

// runKwok parses flags twice, as the command of kwok does: --config and the level of its log are known before the rest.
func runKwok() error {
	first := pflag.NewFlagSet("first", pflag.ContinueOnError)
	first.ParseErrorsAllowlist.UnknownFlags = true
	first.Usage = func() {}
	ctx, _ := kwoklog.InitFlags(context.Background(), first)
	ctx, err := kwokconfig.InitFlags(ctx, first)
	if err != nil {
		return err
	}
	command := kwok.NewCommand(ctx)
	command.Version = "" // otherwise it adds a flag --version, and Kubernetes has a global one
	command.PersistentFlags().AddFlagSet(first)
	return command.ExecuteContext(ctx)
}

// awaitReady waits until the API server of the kubeconfig that is its argument is ready, at most two seconds. kubectl
// would have to start again for each question.
func awaitReady() error {
	config, err := clientcmd.BuildConfigFromFlags("", strings.Join(os.Args[1:], " "))
	if err != nil {
		return err
	}
	config.Timeout = time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	for range 40 {
		if response, err := client.Get(config.Host + "/readyz"); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("cannot use %s: not ready", config.Host)
}

// printKey prints a new private key, with which service accounts' tokens are signed.
func printKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

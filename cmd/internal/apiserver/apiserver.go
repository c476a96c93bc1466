// Package apiserver has the flags by which a command that runs in a pod finds the API server.
package apiserver

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/meshcni/meshcni/internal/api/inpod"
)

// Access reaches the API server for a command: by a kubeconfig, else by its pod's service account.
type Access struct {
	// Kubeconfig is a path. Default: none.
	Kubeconfig string
	// Host, Port and Protocol are those of the API server, which Kubernetes tells each container.
	Host, Port, Protocol string
	// ServiceAccountDir contains the files token and ca.crt.
	ServiceAccountDir string
}

// Variables are the environment variables by which the flags are known to containers, for BindEnv of package cli.
var Variables = map[string][]string{
	"kubernetes-service-host": {"KUBERNETES_SERVICE_HOST"}, "kubernetes-service-port": {"KUBERNETES_SERVICE_PORT"},
	"kubernetes-service-protocol": {"KUBERNETES_SERVICE_PROTOCOL"},
}

// Register declares the flags.
func (a *Access) Register(fs *pflag.FlagSet) {
	fs.StringVar(&a.Kubeconfig, "kubeconfig", "", "kubeconfig to use instead of the pod's service account")
	a.RegisterPod(fs)
}

// RegisterPod declares the flags of a command that is for pods only.
func (a *Access) RegisterPod(fs *pflag.FlagSet) {
	fs.StringVar(&a.Host, "kubernetes-service-host", "", "the API server, where there is no kubeconfig")
	fs.StringVar(&a.Port, "kubernetes-service-port", "443", "its port")
	fs.StringVar(&a.Protocol, "kubernetes-service-protocol", "https", "its protocol")
	fs.StringVar(&a.ServiceAccountDir, "service-account-dir", "/var/run/secrets/kubernetes.io/serviceaccount", "where the pod's credentials are")
}

// Validate returns an error if the flags name no API server.
func (a Access) Validate() error {
	if a.Kubeconfig == "" && a.Host == "" {
		return errors.New("no API server: neither --kubeconfig nor --kubernetes-service-host (KUBERNETES_SERVICE_HOST) is set")
	}
	return nil
}

// Config returns the client configuration, whose files are read again when they change. It reads the kubeconfig, but no token.
func (a Access) Config() (*rest.Config, error) {
	if a.Kubeconfig == "" {
		return inpod.Config(a.Protocol, a.Host, a.Port, a.ServiceAccountDir), a.Validate()
	}
	read := func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", a.Kubeconfig) }
	config, err := read()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return &rest.Config{Host: server.String(), Transport: inpod.Reread(read)}, nil
}

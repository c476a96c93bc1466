// Package inpod reaches the API server from a pod, by the pod's service account.
package inpod

import (
	"net"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
)

// Config returns the client configuration of a service account, whose directory has the files token and ca.crt. client-go reads the
// token again when the kubelet renews it.
func Config(protocol, host, port, serviceAccountDir string) *rest.Config {
	c := &rest.Config{
		Host:            protocol + "://" + net.JoinHostPort(strings.Trim(host, "[]"), port),
		BearerTokenFile: filepath.Join(serviceAccountDir, "token"),
	}
	if protocol == "https" {
		c.CAFile = filepath.Join(serviceAccountDir, "ca.crt")
	}
	return c
}

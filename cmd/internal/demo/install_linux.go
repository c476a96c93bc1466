package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/meshcni/meshcni/installer"
)

// primary is the network list of the node before the plugin is on it.
const primary = `{
  "cniVersion": "1.0.0",
  "name": "demo",
  "plugins": [
    { "type": "` + addrPlugin + `", "address": "` + podAddress + `/24", "gateway": "` + gateway + `" }
  ]
}
`

// node is where the agent's installer puts the plugin, and what was there.
type node struct {
	installer.Config
	file string
}

// newNode lays out a node's directories in dir, with the primary network's plugin
// and list, and the agent's credentials for the API server.
func newNode(dir, bin, apiURL, token string, ca []byte) (n node, err error) {
	server, err := url.Parse(apiURL)
	if err != nil {
		return n, err
	}
	source, err := filepath.Abs("bin")
	if err != nil {
		return n, err
	}
	n.Config = installer.Default()
	n.BinSourceDir, n.CNIBinDirs = source, []string{bin}
	n.CNIConfDir, n.CNICacheDir = filepath.Join(dir, "net.d"), filepath.Join(dir, "cache")
	n.RunDir, n.ServiceAccountDir = filepath.Join(dir, "run"), filepath.Join(dir, "serviceaccount")
	n.KubernetesHost, n.KubernetesPort, n.Plugin.LogLevel = server.Hostname(), server.Port(), "error"
	n.file = filepath.Join(n.CNIConfDir, "10-demo.conflist")
	for path, data := range map[string][]byte{
		n.file: []byte(primary),
		filepath.Join(n.ServiceAccountDir, "token"):  []byte(token),
		filepath.Join(n.ServiceAccountDir, "ca.crt"): ca,
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return n, err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (s *stage) install(ctx context.Context) error {
	s.heading("The node agent puts the plugin on the node: binary, kubeconfig, then one insertion into the network's list")
	steps, err := installer.Install(ctx, s.node.Config, slog.New(slog.DiscardHandler))
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	data, err := os.ReadFile(s.node.file)
	if err != nil {
		return err
	}
	s.say("%s, with our entry in it:", filepath.Base(steps.Target))
	before := strings.Split(primary, "\n")
	for line := range strings.Lines(string(data)) {
		mark := "+"
		line = strings.TrimSuffix(line, "\n")
		// The comma that leads our entry in is part of the insertion.
		if len(before) > 0 && strings.TrimSuffix(line, ",") == strings.TrimSuffix(before[0], ",") {
			mark, before = " ", before[1:]
		}
		s.say(" %s %s", mark, line)
	}
	s.list, err = libcni.NetworkConfFromFile(s.node.file)
	return err
}

func (s *stage) uninstall(ctx context.Context) error {
	s.heading("The node agent takes the plugin away")
	if _, err := installer.Uninstall(ctx, s.node.Config, slog.New(slog.DiscardHandler)); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	data, err := os.ReadFile(s.node.file)
	if err != nil {
		return err
	}
	if !bytes.Equal(data, []byte(primary)) {
		return fmt.Errorf("the network's list is not as it was:\n%s", data)
	}
	if _, err := os.Stat(filepath.Join(s.node.CNIBinDirs[0], s.node.Plugin.Type)); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the plugin is still there: %w", err)
	}
	s.say("The network's list is, byte for byte, what it was; the plugin and its kubeconfig are gone.")
	s.say("\nThe namespaces are removed. Nothing is left on this machine but bin/.")
	return nil
}

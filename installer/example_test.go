//go:build linux

package installer_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/installer"
)

// flannelNode makes a node in a temporary directory.
func flannelNode() (c installer.Config, network string, remove func()) {
	node, err := os.MkdirTemp("", "node-")
	if err != nil {
		panic(err)
	}
	c = installer.Default(meshcni.Identity{})
	c.BinSourceDir, c.CNIBinDirs = filepath.Join(node, "image"), []string{filepath.Join(node, "bin")}
	c.CNIConfDir, c.CNICacheDir = filepath.Join(node, "net.d"), filepath.Join(node, "cache")
	c.RunDir, c.ServiceAccountDir = filepath.Join(node, "run"), filepath.Join(node, "sa")
	c.KubernetesHost = "10.96.0.1"
	c.PluginConfig = `{"type": "meshcni", "dialect": "istio"}` // the entry that is rendered by default is longer
	network = filepath.Join(c.CNIConfDir, "10-flannel.conflist")
	for path, data := range map[string]string{
		filepath.Join(c.BinSourceDir, "meshcni"):     "#!/bin/true\n",
		filepath.Join(c.CNIBinDirs[0], "flannel"):    "#!/bin/true\n",
		filepath.Join(c.ServiceAccountDir, "token"):  "token",
		filepath.Join(c.ServiceAccountDir, "ca.crt"): "CA",
		network: `{"name": "cbr0", "cniVersion": "1.0.0", "plugins": [{"type": "flannel"}]}`,
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			panic(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o755); err != nil {
			panic(err)
		}
	}
	return c, network, func() { os.RemoveAll(node) }
}

// The plugin is added to the network that is there, and removed again without a trace.
func ExampleInstall() {
	c, network, remove := flannelNode()
	defer remove()
	ctx, log := context.Background(), slog.New(slog.DiscardHandler)

	if _, err := installer.Install(ctx, c, log); err != nil {
		panic(err)
	}
	with, _ := os.ReadFile(network)
	fmt.Println(string(with))
	if _, err := installer.Uninstall(ctx, c, log); err != nil {
		panic(err)
	}
	without, _ := os.ReadFile(network)
	fmt.Println(string(without))
	// Output:
	// {"name": "cbr0", "cniVersion": "1.0.0", "plugins": [{"type": "flannel"},{"type": "meshcni", "dialect": "istio"}]}
	// {"name": "cbr0", "cniVersion": "1.0.0", "plugins": [{"type": "flannel"}]}
}

// A plugin that is no mesh's, and asks no API server: it gets no token.
func ExampleInstall_ownPlugin() {
	node, network, remove := flannelNode()
	defer remove()

	c := installer.Default(meshcni.Identity{Name: "egress"})
	c.PluginConfig = `{"type": "egress", "port": 3129, "inside": ["10.0.0.0/8"]}`
	c.KubeconfigName = "" // the plugin asks no API server, so it gets no token
	c.BinaryName, c.BinSourceDir, c.CNIBinDirs = "meshcni", node.BinSourceDir, node.CNIBinDirs
	c.CNIConfDir, c.CNICacheDir, c.RunDir = node.CNIConfDir, node.CNICacheDir, node.RunDir
	if _, err := installer.Install(context.Background(), c, slog.New(slog.DiscardHandler)); err != nil {
		panic(err)
	}
	with, _ := os.ReadFile(network)
	fmt.Println(string(with))
	_, err := os.Stat(filepath.Join(c.RunDir, "kubeconfig"))
	fmt.Println("a token:", err == nil)
	// Output:
	// {"name": "cbr0", "cniVersion": "1.0.0", "plugins": [{"type": "flannel"},{"type": "egress", "port": 3129, "inside": ["10.0.0.0/8"]}]}
	// a token: false
}

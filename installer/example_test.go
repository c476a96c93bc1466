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

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// peer is another mesh's CNI plugin, as its installer behaves and as its plugin leaves a pod. It is our own work, after what these
// programs are seen to do.
type peer struct {
	// annotation is on the pods of its mesh, whose rules are what the plugin writes.
	annotation, rules string
	// everyFile: the entry goes into each file of the directory, not only into the first valid one.
	everyFile bool
	// last: the entry has to be the last and as it was written; else any entry of its type will do.
	last bool
	// renames: a file is replaced in one step; else it is written over.
	renames bool
	// binaryFirst: at its end the program goes before the entry.
	binaryFirst bool
}

// peers are by their types. The rules are those of a pod with the mesh's defaults.
var peers = map[string]peer{
	"istio-cni": {annotation: "sidecar.istio.io/status", renames: true, rules: `*nat
:ISTIO_INBOUND - [0:0]
:ISTIO_IN_REDIRECT - [0:0]
:ISTIO_OUTPUT - [0:0]
:ISTIO_REDIRECT - [0:0]
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_INBOUND -p tcp -m tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 15090 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 15021 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 15020 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -p tcp -m tcp --dport 15020 -j RETURN
-A ISTIO_OUTPUT -s 127.0.0.6/32 -o lo -j RETURN
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp -m tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp -m tcp ! --dport 15008 -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
COMMIT
`},
	"linkerd-cni": {annotation: "linkerd.io/proxy-version", everyFile: true, renames: true, rules: `*nat
:PROXY_INIT_OUTPUT - [0:0]
:PROXY_INIT_REDIRECT - [0:0]
-A PREROUTING -m comment --comment "proxy-init/install-proxy-init-prerouting" -j PROXY_INIT_REDIRECT
-A OUTPUT -m comment --comment "proxy-init/install-proxy-init-output" -j PROXY_INIT_OUTPUT
-A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment --comment "proxy-init/ignore-proxy-user-id" -j RETURN
-A PROXY_INIT_OUTPUT -o lo -m comment --comment "proxy-init/ignore-loopback" -j RETURN
-A PROXY_INIT_OUTPUT -p tcp -m comment --comment "proxy-init/redirect-all-outgoing-to-proxy-port" -j REDIRECT --to-ports 4140
-A PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,4191 -m comment --comment "proxy-init/ignore-port-4190,4191" -j RETURN
-A PROXY_INIT_REDIRECT -p tcp -m comment --comment "proxy-init/redirect-all-incoming-to-proxy-port" -j REDIRECT --to-ports 4143
COMMIT
`},
	"kuma-cni": {annotation: "kuma.io/sidecar-injected", renames: true, binaryFirst: true, rules: `*nat
:KUMA_MESH_INBOUND - [0:0]
:KUMA_MESH_INBOUND_REDIRECT - [0:0]
:KUMA_MESH_OUTBOUND - [0:0]
:KUMA_MESH_OUTBOUND_REDIRECT - [0:0]
-A PREROUTING -p tcp -m comment --comment "kuma/mesh/transparent/proxy" -j KUMA_MESH_INBOUND
-A OUTPUT -p tcp -m comment --comment "kuma/mesh/transparent/proxy" -j KUMA_MESH_OUTBOUND
-A KUMA_MESH_INBOUND -p tcp -m comment --comment "kuma/mesh/transparent/proxy" -j KUMA_MESH_INBOUND_REDIRECT
-A KUMA_MESH_INBOUND_REDIRECT -p tcp -m comment --comment "kuma/mesh/transparent/proxy" -j REDIRECT --to-ports 15006
-A KUMA_MESH_OUTBOUND -s 127.0.0.6/32 -o lo -m comment --comment "kuma/mesh/transparent/proxy" -j RETURN
-A KUMA_MESH_OUTBOUND ! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 5678 -m comment --comment "kuma/mesh/transparent/proxy" -j KUMA_MESH_INBOUND_REDIRECT
-A KUMA_MESH_OUTBOUND -o lo -m owner ! --uid-owner 5678 -m comment --comment "kuma/mesh/transparent/proxy" -j RETURN
-A KUMA_MESH_OUTBOUND -m owner --uid-owner 5678 -m comment --comment "kuma/mesh/transparent/proxy" -j RETURN
-A KUMA_MESH_OUTBOUND -d 127.0.0.1/32 -m comment --comment "kuma/mesh/transparent/proxy" -j RETURN
-A KUMA_MESH_OUTBOUND -p tcp -m comment --comment "kuma/mesh/transparent/proxy" -j KUMA_MESH_OUTBOUND_REDIRECT
-A KUMA_MESH_OUTBOUND_REDIRECT -p tcp -m comment --comment "kuma/mesh/transparent/proxy" -j REDIRECT --to-ports 15001
COMMIT
`},
	"consul-cni": {annotation: "consul.hashicorp.com/connect-inject-status", last: true, rules: `*nat
:CONSUL_PROXY_INBOUND - [0:0]
:CONSUL_PROXY_IN_REDIRECT - [0:0]
:CONSUL_PROXY_OUTPUT - [0:0]
:CONSUL_PROXY_REDIRECT - [0:0]
-A PREROUTING -p tcp -j CONSUL_PROXY_INBOUND
-A OUTPUT -p tcp -j CONSUL_PROXY_OUTPUT
-A CONSUL_PROXY_INBOUND -p tcp -j CONSUL_PROXY_IN_REDIRECT
-A CONSUL_PROXY_IN_REDIRECT -p tcp -j REDIRECT --to-ports 20000
-A CONSUL_PROXY_OUTPUT -m owner --uid-owner 5995 -j RETURN
-A CONSUL_PROXY_OUTPUT -d 127.0.0.1/32 -j RETURN
-A CONSUL_PROXY_OUTPUT -j CONSUL_PROXY_REDIRECT
-A CONSUL_PROXY_REDIRECT -p tcp -j REDIRECT --to-ports 15001
COMMIT
`},
}

// The directories of the host, as the installers' pods have them.
const (
	peerConf = "/host/etc/cni/net.d"
	peerBin  = "/host/opt/cni/bin"
)

// add is the plugin's ADD.
func (p peer) add(annotations map[string]string, prevResult []byte) error {
	if annotations[p.annotation] != "" {
		restore := exec.Command("nsenter", "--net="+os.Getenv("CNI_NETNS"), "iptables-restore", "--noflush", "--wait")
		restore.Stdin = strings.NewReader(p.rules)
		if out, err := restore.CombinedOutput(); err != nil {
			return fmt.Errorf("iptables-restore: %w: %s", err, out)
		}
	}
	_, err := os.Stdout.Write(prevResult)
	return err
}

// peerAgent is the plugin's installer: it puts program and entry in, again whenever the entry is not as it has to be, and takes
// both out at its end, unless it is killed.
func peerAgent(args []string) error {
	typ := args[0]
	p, ok := peers[typ]
	if !ok {
		return fmt.Errorf("no plugin %q", typ)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	binary := filepath.Join(peerBin, typ)
	if err := os.WriteFile(binary+".tmp", program, 0o755); err != nil {
		return err
	}
	if err := os.Rename(binary+".tmp", binary); err != nil {
		return err
	}
	look := time.NewTicker(200 * time.Millisecond)
	for {
		if err := p.each(typ, p.put(typ)); err != nil {
			return err
		}
		select {
		case <-look.C:
		case <-signals:
			if slices.Contains(args, "killed") { // as one that does not end in time
				return nil
			}
			steps := []func() error{func() error { return p.each(typ, without(typ)) }, func() error { return os.Remove(binary) }}
			if p.binaryFirst {
				slices.Reverse(steps)
			}
			return errors.Join(steps[0](), steps[1]())
		}
	}
}

// each changes the lists. Whoever decodes and encodes keeps neither the order of keys nor blanks.
func (p peer) each(typ string, change func([]map[string]any) ([]map[string]any, bool)) error {
	names, err := filepath.Glob(peerConf + "/*.conflist")
	if err != nil {
		return err
	}
	if !p.everyFile && len(names) > 1 {
		names = names[:1]
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var list map[string]any
		if err == nil {
			err = json.Unmarshal(text, &list)
		}
		if err != nil {
			return err
		}
		var plugins []map[string]any
		all, _ := list["plugins"].([]any)
		for _, one := range all {
			if entry, ok := one.(map[string]any); ok {
				plugins = append(plugins, entry)
			}
		}
		next, changed := change(plugins)
		if !changed {
			continue
		}
		list["plugins"] = next
		if text, err = json.MarshalIndent(list, "", "  "); err != nil {
			return err
		}
		if !p.renames {
			err = os.WriteFile(name, text, 0o644)
		} else if err = os.WriteFile(name+"."+typ, text, 0o644); err == nil {
			err = os.Rename(name+"."+typ, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p peer) put(typ string) func([]map[string]any) ([]map[string]any, bool) {
	return func(plugins []map[string]any) ([]map[string]any, bool) {
		at := slices.IndexFunc(plugins, func(e map[string]any) bool { return e["type"] == typ })
		if at >= 0 && (!p.last || at == len(plugins)-1) {
			return plugins, false
		}
		others, _ := without(typ)(plugins)
		return append(others, map[string]any{"type": typ, "rules": typ, "capabilities": map[string]any{annotationsCapability: true}}), true
	}
}

func without(typ string) func([]map[string]any) ([]map[string]any, bool) {
	return func(plugins []map[string]any) ([]map[string]any, bool) {
		others := slices.DeleteFunc(slices.Clone(plugins), func(e map[string]any) bool { return e["type"] == typ })
		return others, len(others) < len(plugins)
	}
}

// annotationsCapability is how a plugin asks the runtime for the pod's annotations.
const annotationsCapability = "io.kubernetes.cri.pod-annotations"

// peerCall is what a peer is called with. Its entry names it by "rules".
type peerCall struct {
	Rules         string                       `json:"rules"`
	RuntimeConfig map[string]map[string]string `json:"runtimeConfig"`
}

// called answers as a peer if the configuration is that of one.
func called(command string, config io.Reader) (rest io.Reader, done bool, err error) {
	text, err := io.ReadAll(config)
	if err != nil {
		return nil, false, err
	}
	var c peerCall
	var prev struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if json.Unmarshal(text, &c) != nil || json.Unmarshal(text, &prev) != nil || c.Rules == "" || command != "ADD" {
		return bytes.NewReader(text), false, nil
	}
	return nil, true, peers[c.Rules].add(c.RuntimeConfig[annotationsCapability], prev.PrevResult)
}

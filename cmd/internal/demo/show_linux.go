package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/plugintest"
)

const (
	podAddress = "10.244.1.5"
	gateway    = "10.244.1.1"
)

// stage is all that stands around the plugin.
type stage struct {
	out   io.Writer
	world *netnstest.World
	api   *plugintest.APIServer
	pod   *corev1.Pod
	node  node
	cni   *libcni.CNIConfig
	list  *libcni.NetworkConfigList
	rt    *libcni.RuntimeConf
}

func show(ctx context.Context, out io.Writer) (err error) {
	tb := newTB()
	defer func() { err = errors.Join(err, tb.end(recover())) }()
	s, err := set(tb, out)
	if err != nil {
		return err
	}
	for _, act := range []func(context.Context) error{s.install, s.add, s.packets, s.again, s.tamper, s.refuse, s.uninstall} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

// set makes the world, the API server, the plugins' directory and the network.
func set(tb *tb, out io.Writer) (*stage, error) {
	s := &stage{out: out}
	text, err := os.ReadFile(podFile)
	if err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(text, &s.pod); err != nil {
		return nil, fmt.Errorf("read %s: %w", podFile, err)
	}
	if s.api, err = plugintest.StartAPIServer(); err != nil {
		return nil, err
	}
	tb.Cleanup(s.api.Close)
	s.api.SetPod(s.pod)
	dir := tb.TempDir()
	bin, err := plugins(dir)
	if err != nil {
		return nil, err
	}
	if s.node, err = newNode(dir, bin, s.api.URL(), s.api.Token(), s.api.CA()); err != nil {
		return nil, err
	}
	s.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, s.node.CNICacheDir, nil)
	s.world = netnstest.NewWorld(tb, netnstest.Options{Patience: 2 * time.Second})
	s.rt = &libcni.RuntimeConf{
		ContainerID: "demo", NetNS: s.world.PodPath(), IfName: "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", s.pod.Namespace}, {"K8S_POD_NAME", s.pod.Name}, {"K8S_POD_UID", string(s.pod.UID)},
		},
	}
	return s, s.bare()
}

// plugins makes the directory that the runtime finds plugins in, with the one
// that gives addresses.
func plugins(dir string) (string, error) {
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return bin, os.Symlink(self, filepath.Join(bin, addrPlugin))
}

// bare takes the pod's address away, which the world has given it: to give it
// is the first plugin's part.
func (s *stage) bare() error {
	if _, err := s.inPod("ip", "addr", "flush", "dev", "eth0"); err != nil {
		return err
	}
	_, err := s.inPod("ip", "-6", "addr", "flush", "dev", "eth0")
	return err
}

func (s *stage) inPod(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := s.world.Pod.Run(cmd); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out.String())
	}
	return out.String(), nil
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *stage) heading(format string, args ...any) { s.say("\n== "+format, args...) }

func (s *stage) add(ctx context.Context) error {
	s.heading("Pod %s/%s of %s starts: the runtime library adds it to the network", s.pod.Namespace, s.pod.Name, podFile)
	for _, p := range s.list.Plugins {
		s.say("   plugin %s", p.Network.Type)
	}
	start := time.Now()
	result, err := s.cni.AddNetworkList(ctx, s.list, s.rt)
	if err != nil {
		return fmt.Errorf("add the pod to the network: %w", err)
	}
	took := time.Since(start)
	rules, err := s.rules()
	if err != nil {
		return err
	}
	s.say("\nADD took %s for both plugins, and %d GET of the API server; %d rules are in the pod's namespace.",
		took.Round(time.Millisecond), len(s.api.Requests()), strings.Count(rules, "\n-A "))
	var compact strings.Builder
	if err := result.PrintTo(&compact); err != nil {
		return err
	}
	s.say("The result, which is the first plugin's, unchanged:\n%s", compact.String())
	return nil
}

func (s *stage) rules() (string, error) { return s.inPod("iptables-save") }

func (s *stage) packets(context.Context) error {
	s.heading("Packets, sent by real sockets, and what answered them")
	rows, err := s.send()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHO AND WHERE TO\tUSER\tDESTINATION\tANSWERED BY\tTHE PLUGIN'S RULES\tBECAUSE")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%s %s\t%s\t%s\t%s\n", r.what, r.probe.UID, r.probe.Proto, r.probe.Dst, r.fate, r.verdict, r.reason)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		if !r.agrees {
			return fmt.Errorf("%s: the rules were to do %q, but the packet ended at %s", r.probe, r.verdict, r.fate)
		}
	}
	s.say("\nEach packet went where the tracer, which knows no kernel, said.")
	return nil
}

func (s *stage) again(ctx context.Context) error {
	s.heading("A second ADD, and CHECK")
	before, err := s.chains()
	if err != nil {
		return err
	}
	if _, err := s.cni.AddNetworkList(ctx, s.list, s.rt); err != nil {
		return fmt.Errorf("add the pod again: %w", err)
	}
	after, err := s.chains()
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("a second ADD changed the rules:\n%s", after)
	}
	if err := s.cni.CheckNetworkList(ctx, s.list, s.rt); err != nil {
		return fmt.Errorf("check the pod: %w", err)
	}
	s.say("The second ADD left the same rules. CHECK finds them as wanted.")
	return nil
}

// chains is the rules without counters and dates.
func (s *stage) chains() (string, error) {
	out, err := s.rules()
	var b strings.Builder
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "-A ") {
			b.WriteString(line)
		}
	}
	return b.String(), err
}

func (s *stage) tamper(ctx context.Context) error {
	s.heading("Somebody removes a rule: iptables -t nat -D ISTIO_OUTPUT 1")
	if _, err := s.inPod("iptables", "-t", "nat", "-D", "ISTIO_OUTPUT", "1"); err != nil {
		return err
	}
	err := s.cni.CheckNetworkList(ctx, s.list, s.rt)
	if err == nil {
		return errors.New("CHECK saw nothing")
	}
	s.say("CHECK says: %v", err)
	return nil
}

func (s *stage) refuse(ctx context.Context) error {
	const key = "traffic.sidecar.istio.io/excludeInboundPorts"
	s.heading("The same pod with %s: \"22,ssh\"", key)
	bad := s.pod.DeepCopy()
	bad.Annotations[key] = "22,ssh"
	s.api.SetPod(bad)
	_, err := s.cni.AddNetworkList(ctx, s.list, s.rt)
	if err == nil {
		return errors.New("a bad annotation was accepted")
	}
	s.say("ADD refuses it, and the kubelet would show: %v", err)
	if err := s.cni.DelNetworkList(ctx, s.list, s.rt); err != nil {
		return fmt.Errorf("delete the pod from the network: %w", err)
	}
	s.say("DEL ran.")
	return nil
}

// Command embed is a CNI plugin that does something else, and also redirects pods to a mesh. Its verbs, configuration
// and source of pods are its own; meshcni's packages decide on the pod, make the rules and apply them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
)

func main() {
	nothing := func(*skel.CmdArgs) error { return nil }
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: nothing, Check: nothing}, version.All, "embed")
}

func add(args *skel.CmdArgs) error {
	var conf types.PluginConf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if err := version.ParsePrevResult(&conf); err != nil {
		return fmt.Errorf("read previous result: %w", err)
	}
	result, err := current.GetResult(conf.PrevResult)
	if err != nil {
		return fmt.Errorf("read previous result: %w", err)
	}

	// Here the plugin does what it is for.

	pod, err := podOf(args.Args)
	if err != nil {
		return err
	}
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := capture(ctx, args.Netns, args.Args, pod, addrs); err != nil {
		return err
	}
	return types.PrintResult(conf.PrevResult, conf.CNIVersion)
}

// meshes are those of the node, in the order in which they are asked about a pod.
var meshes = dialect.SetOf(linkerd.New("kube-system")).WithOptions(dialect.Options{UncapturedFamily: redirect.UncapturedDrop})

// capture redirects the pod, if it is in a mesh.
func capture(ctx context.Context, path, cniArgs string, pod *corev1.Pod, addrs []netip.Addr) error {
	if err := dialect.Validate(meshes.Known()); err != nil { // else each pod would be blamed for it
		return err
	}
	ns, err := netnsexec.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	kernel, err := apply.Kernel(ns)
	if err != nil {
		return err
	}
	known := dialect.Subject{Pod: pod, Addrs: addrs, Kernel: kernel}
	if meshes.ReadsNamespace(pod) { // without it, Plan refuses the pod
		if known.Namespace, err = namespaceOf(cniArgs); err != nil {
			return err
		}
	}
	plan, err := meshes.Plan(known)
	fmt.Fprintf(os.Stderr, "pod %s/%s: %s: %s\n", pod.Namespace, pod.Name, plan.Decision.Reason, plan.Decision.Detail)
	if err != nil || !plan.Decision.Selected {
		return err
	}
	for _, bypass := range plan.Bypasses {
		fmt.Fprintln(os.Stderr, bypass)
	}
	backend, err := apply.Choose(ctx, ns, apply.Options{})
	if err != nil {
		return err
	}
	_, err = backend.Apply(ctx, plan.Ruleset)
	return err
}

// source is what CNI_ARGS name.
type source struct {
	types.CommonArgs
	K8S_POD_NAME, K8S_POD_NAMESPACE, POD_FILE, NAMESPACE_FILE types.UnmarshallableString
}

// podOf and namespaceOf stand for the plugin's own source of pods, such as the agent beside it: these read files that CNI_ARGS
// name.
func podOf(cniArgs string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, read(cniArgs, "pod", pod, func(s source) types.UnmarshallableString { return s.POD_FILE })
}

func namespaceOf(cniArgs string) (*corev1.Namespace, error) {
	namespace := &corev1.Namespace{}
	return namespace, read(cniArgs, "namespace", namespace, func(s source) types.UnmarshallableString { return s.NAMESPACE_FILE })
}

func read(cniArgs, what string, into any, file func(source) types.UnmarshallableString) error {
	args := source{CommonArgs: types.CommonArgs{IgnoreUnknown: true}}
	if err := types.LoadArgs(cniArgs, &args); err != nil {
		return fmt.Errorf("read CNI_ARGS: %w", err)
	}
	b, err := os.ReadFile(string(file(args)))
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	return nil
}

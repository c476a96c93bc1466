// Package initrules tells what rules a mesh's init container writes, from its arguments and variables in the pod.
//
// It does not guess. An argument that is not known, or that is in a file or variable outside the pod, is an error.
// What Consul's container takes from the proxy's registration in Consul is not in the pod either: it adds excluded inbound ports.
package initrules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/migration"
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/redirect"
)

// Redirect returns what the init container of a mesh, by its dialect's name, writes in a pod. Ours is what a plugin of ours makes
// there: where the container's arguments cannot say whether a family has rules that the pod has no address of, its answer counts.
func Redirect(mesh string, pod *corev1.Pod, c *corev1.Container, ours redirect.Redirect) (redirect.Redirect, error) {
	words, err := arguments(c)
	if err != nil {
		return redirect.Redirect{}, err
	}
	switch mesh {
	case "istio":
		base := istio.Defaults()
		base.IPv6, base.IPv4 = ours.IPv6, ours.IPv4
		v := variables{of: c}
		r, err := redirectcmd.InitContainer(base, words, v.lookup)
		return r, cmp.Or(v.err, err)
	case "linkerd":
		return ofLinkerd(pod, words, ours)
	case "kuma":
		return ofKuma(pod, words)
	case "consul":
		return ofConsul(pod, c)
	}
	return redirect.Redirect{}, fmt.Errorf("the init containers of %s are not known", mesh)
}

// arguments are those of a container, which the kubelet expands by names in $(…).
func arguments(c *corev1.Container) ([]string, error) {
	for _, a := range c.Args {
		if strings.Contains(a, "$(") {
			return nil, fmt.Errorf("argument %q takes a variable's value", a)
		}
	}
	return c.Args, nil
}

// variables are those of a container.
type variables struct {
	of  *corev1.Container
	err error // names one that was asked for, whose value is not in the pod
}

// lookup is like os.LookupEnv. Of several variables of a name the last counts, and each before those of EnvFrom.
func (v *variables) lookup(name string) (string, bool) {
	for _, e := range slices.Backward(v.of.Env) {
		if e.Name != name {
			continue
		}
		if e.ValueFrom != nil || strings.Contains(e.Value, "$(") {
			v.unknown(name)
		}
		return e.Value, true
	}
	if len(v.of.EnvFrom) > 0 {
		v.unknown(name)
	}
	return "", false
}

func (v *variables) unknown(name string) {
	v.err = cmp.Or(v.err, fmt.Errorf("the value of variable %s is not in the pod", name))
}

// build reads a pod as the mesh's plugin would, with these annotations and without its init containers.
func build(d dialect.Dialect, pod *corev1.Pod, annotations map[string]string) (redirect.Redirect, error) {
	as := pod.DeepCopy()
	as.Spec.InitContainers, as.Annotations = nil, annotations
	for _, c := range pod.Spec.InitContainers { // a proxy may be one of them
		if !d.Policy.SetsRules(&c) {
			as.Spec.InitContainers = append(as.Spec.InitContainers, c)
		}
	}
	r, err := d.Redirect(as, nil, explain.Addrs(pod))
	if err != nil {
		return redirect.Redirect{}, errors.New(strings.Join(explain.Reasons(err), "; "))
	}
	for _, w := range r.Warnings {
		if w.Code == redirect.WarningUnknown {
			return redirect.Redirect{}, errors.New(w.Text)
		}
	}
	return r.Redirect, nil
}

func ofConsul(pod *corev1.Pod, c *corev1.Container) (redirect.Redirect, error) {
	text, err := migration.ConsulConfig(c)
	if err != nil {
		return redirect.Redirect{}, err
	}
	dual, err := migration.ConsulDualStack(pod)
	if err != nil {
		return redirect.Redirect{}, err
	}
	return build(consul.New(), pod, map[string]string{consul.RedirectTrafficConfig: text, consul.DualStack: dual})
}

// ofKuma makes a pod's configuration of the arguments, which the dialect reads.
func ofKuma(pod *corev1.Pod, words []string) (redirect.Redirect, error) {
	text, err := kumaConfig(words)
	if err != nil {
		return redirect.Redirect{}, err
	}
	return build(kuma.New(), pod, map[string]string{kuma.Config: text})
}

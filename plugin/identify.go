package plugin

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// consulKey is that of CNI_ARGS by which Nomad asks for Consul's mesh, see [dialect.Sandboxes]. A plugin without that dialect must refuse
// a sandbox that has it, which would otherwise start outside its mesh.
const consulKey = "CONSUL_IPTABLES_CONFIG"

// target is the pod or sandbox of an ADD.
type target struct {
	meshes dialect.Set
	name   string      // for messages
	pod    *corev1.Pod // stands for a sandbox that CNI_ARGS configure; nil: a pod that has to be read
	asked  string      // the key of CNI_ARGS that configures the sandbox
}

// identify finds the meshes. If CNI_ARGS configure the sandbox themselves, it also makes a pod to stand for it. Such keys
// take precedence over the name of a pod in CNI_ARGS, as in the plugins that read them: otherwise whoever can add to CNI_ARGS
// could name an excluded namespace.
func (r *run) identify() (t target, failure *types.Error) {
	t.name = r.pod.String()
	var err error
	t.meshes, err = r.meshes(r.config)
	if unknown := t.meshes.Unknown(r.unknown); len(unknown) > 0 {
		r.logger().Warn("unknown configuration keys are ignored", "keys", unknown)
	}
	if err != nil {
		return t, codeOf(err, types.ErrInvalidNetworkConfig, "network configuration")
	}
	keys := []string{consulKey}
	for d := range t.meshes.All() {
		if d.Sandboxes != nil {
			keys = append(keys, d.Sandboxes.Key)
		}
	}
	args := map[string]string{}
	var asked []string
	for pair := range strings.SplitSeq(r.args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		if slices.Contains(keys, key) {
			if _, twice := args[key]; twice {
				return t, fail(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %s is there twice", key)
			}
			// An empty value beside the names of a pod asks for nothing.
			if value != "" || !r.pod.isPod() {
				asked = append(asked, key)
			}
		}
		args[key] = value
	}
	if len(asked) == 0 {
		return t, nil
	}
	maps.DeleteFunc(args, func(key, _ string) bool { return slices.Contains(keys, key) && !slices.Contains(asked, key) })
	sandboxed, unread := t.meshes.ForSandbox(args), slices.Clone(asked)
	for d := range sandboxed.All() {
		t.asked = cmp.Or(t.asked, d.Sandboxes.Key)
		unread = slices.DeleteFunc(unread, func(key string) bool { return key == d.Sandboxes.Key })
	}
	if len(unread) > 0 {
		return t, hint(fail(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %s asks for redirection, which dialect %s does not read",
			strings.Join(unread, " and "), strings.Join(t.meshes.Names(), " or ")),
			"a sandbox of another mesh does not start outside it; give its network a configuration with that mesh's dialect")
	}
	t.meshes = sandboxed
	t.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "sandbox", Name: r.attachment.ContainerID}}
	t.name = t.pod.Namespace + "/" + t.pod.Name
	return t, nil
}

// explain says of a sandbox's decision where it comes from.
func (t target) explain(d selection.Decision) selection.Decision {
	if t.asked != "" {
		d.Detail = "CNI_ARGS has " + t.asked
	}
	return d
}

// refusal is the failure of a pod that its mesh's plan refuses.
func (t target) refusal(c netconf.Config, plan dialect.Plan, err error) *types.Error {
	failure := fail(types.ErrInvalidNetworkConfig, "%v", err)
	var invalid *dialect.InvalidError
	switch {
	case errors.As(err, &invalid):
		return hint(failure, "dialect %s is wrong, and not the pod: no pod of that mesh starts before its makers correct it", invalid.Dialect)
	case errors.Is(err, redirect.ErrNamespaceUnknown):
		return hint(failure, "the pod's namespace decides too; it does not start before that is known")
	case plan.Decision.Reason == status.CodeProxyMissing && t.meshes.Lookup(plan.Dialect).Policy.MissingProxy == status.StateRefused:
		return hint(failure, "see that the mesh's injector runs, and create the pod anew")
	case t.asked != "":
		return hint(failure, "correct what leads to %s in CNI_ARGS; the sandbox does not start without its rules", t.asked)
	}
	var why []string
	for _, key := range refusing(c, err) {
		is := "true"
		if key == "allow_sandboxed" {
			is = "not true"
		}
		why = append(why, key+" is "+is+" in the network configuration")
	}
	if errors.As(err, new(*redirect.SettingError)) || errors.As(err, new(*dialect.SettingsError)) {
		why = slices.Insert(why, 0, "correct the pod's annotations")
	}
	if len(why) > 0 && strings.Contains(strings.Join(why, ""), "configuration") {
		return hint(failure, "%s", strings.Join(why, "; "))
	}
	return hint(failure, "correct the pod's annotations; the pod does not start without its rules")
}

// refusing returns the keys of the configuration by which the pod's bypasses are refused, each once.
func refusing(c netconf.Config, err error) (keys []string) {
	if bypass, ok := err.(*dialect.BypassError); ok { //nolint:errorlint // each of those joined counts
		switch {
		case bypass.Code == dialect.BypassSandboxed:
			return []string{"allow_sandboxed"}
		case c.RefuseNetRaw && (bypass.ByDefault() || !c.RefuseProxyUID):
			return []string{"refuse_net_raw"}
		}
		return []string{"refuse_proxy_uid"}
	}
	var parts []error
	switch err := err.(type) { //nolint:errorlint // it is taken apart
	case interface{ Unwrap() error }:
		parts = []error{err.Unwrap()}
	case interface{ Unwrap() []error }:
		parts = err.Unwrap()
	}
	for _, part := range parts {
		for _, key := range refusing(c, part) {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

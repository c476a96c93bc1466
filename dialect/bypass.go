package dialect

import (
	"errors"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect"
)

// Bypass is a container that runs under an id by which the rules know the
// proxy: everything it sends leaves the pod past the mesh, and nobody notices.
type Bypass struct {
	// Container is its name.
	Container string `json:"container"`
	// Field is "runAsUser" or "runAsGroup", and ID its value.
	Field string `json:"field"`
	ID    uint32 `json:"id"`
	// Inherited says that the value is the pod's, not the container's own.
	Inherited bool `json:"inherited,omitempty"`
}

// String returns a sentence for people.
func (b Bypass) String() string {
	kind, where := "user", ""
	if b.Field == "runAsGroup" {
		kind = "group"
	}
	if b.Inherited {
		where = " (by the pod's securityContext)"
	}
	return fmt.Sprintf("container %q bypasses the mesh: it runs as the proxy's %s, %d%s, whose outbound traffic is not redirected",
		b.Container, kind, b.ID, where)
}

// BypassError refuses a pod for its bypasses. Get at it with
// errors.As(err, &bypassError); several are joined, see [errors.Join].
type BypassError struct{ Bypass }

// Error returns the sentence, and what would help.
func (e *BypassError) Error() string {
	return e.String() + "; give the application another, or the proxy a user of its own"
}

// RefuseBypasses returns an error when the pod has any bypass, else nil; each
// is a [*BypassError].
func (b Built) RefuseBypasses() error {
	var errs []error
	for _, bypass := range b.Bypasses {
		errs = append(errs, &BypassError{bypass})
	}
	return errors.Join(errs...)
}

// Bypasses finds the pod's containers, other than those that the patterns name
// (see [path.Match]; a plain name is one), that run under
// one of the proxy's ids by the word of its securityContexts. What an image
// says of its user cannot be seen from the pod. Init containers do not count
// unless they go on running beside the application: running one as the proxy
// is how meshes let it reach the network before the proxy is up.
func Bypasses(pod *corev1.Pod, proxyContainers []string, proxy redirect.Proxy) []Bypass {
	var found []Bypass
	look := func(c *corev1.Container) {
		own := func(pattern string) bool { ok, err := path.Match(pattern, c.Name); return ok && err == nil }
		if slices.ContainsFunc(proxyContainers, own) {
			return
		}
		var its, pods corev1.SecurityContext
		if c.SecurityContext != nil {
			its = *c.SecurityContext
		}
		if sc := pod.Spec.SecurityContext; sc != nil {
			pods.RunAsUser, pods.RunAsGroup = sc.RunAsUser, sc.RunAsGroup
		}
		for _, f := range []struct {
			field     string
			own, pods *int64
			ids       []uint32
		}{
			{"runAsUser", its.RunAsUser, pods.RunAsUser, proxy.UIDs},
			{"runAsGroup", its.RunAsGroup, pods.RunAsGroup, proxy.GIDs},
		} {
			id, inherited := f.own, false
			if id == nil {
				id, inherited = f.pods, true
			}
			if id != nil && slices.ContainsFunc(f.ids, func(p uint32) bool { return int64(p) == *id }) {
				found = append(found, Bypass{c.Name, f.field, uint32(*id), inherited}) //nolint:gosec // it equals a uint32
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			look(c)
		}
	}
	for i := range pod.Spec.Containers {
		look(&pod.Spec.Containers[i])
	}
	return found
}

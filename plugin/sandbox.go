package plugin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/dialects"
)

// forSandbox returns the mesh for a sandbox that CNI_ARGS themselves configure, and the pod that stands for it; nil: they
// do not, and the mesh is as it was. They win over the names of a pod beside them, as with the plugins that read them: who
// may add to CNI_ARGS on such a runtime could otherwise name an excluded namespace.
func (c *call) forSandbox(mesh dialect.Dialect) (dialect.Dialect, *corev1.Pod, *types.Error) {
	keys := dialects.SandboxKeys()
	if mesh.Sandboxes != nil {
		keys = append(keys, mesh.Sandboxes.Key)
	}
	args := map[string]string{}
	asked := ""
	for pair := range strings.SplitSeq(c.env.args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		if slices.Contains(keys, key) {
			if _, twice := args[key]; twice {
				return mesh, nil, fail(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %s is there twice", key)
			}
			// Beside a pod, an empty one is one that a runtime has nothing to say in.
			if value != "" || !c.id.isPod() {
				asked = key
			}
		}
		args[key] = value
	}
	if asked == "" {
		return mesh, nil, nil
	}
	forSandbox, ok := mesh.ForSandbox(args)
	if !ok {
		return mesh, nil, hint(fail(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %s asks for redirection, which dialect %s does not read", asked, mesh.Name),
			"a sandbox of another mesh does not start outside it; give its network a configuration with that mesh's dialect")
	}
	c.id.sandbox = c.env.containerID
	c.asked = asked
	return forSandbox, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: sandboxNamespace, Name: c.env.containerID}}, nil
}

// sandboxNamespace stands in messages where a pod's namespace would.
const sandboxNamespace = "sandbox"

// toCorrect says what to do about a configuration that is refused.
func (c *call) toCorrect() string {
	if c.asked != "" {
		return fmt.Sprintf("correct what leads to %s in CNI_ARGS; the sandbox does not start without its rules", c.asked)
	}
	return "correct the pod's annotations; the pod does not start without its rules"
}

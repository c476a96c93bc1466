package kubectlcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/status"
)

// containers is about a pod that has its network, and does not run all the same.
func (s *subject) containers(onNode) *present {
	for _, c := range slices.Concat(s.pod.Status.InitContainerStatuses, s.pod.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil || w.Reason == "" || w.Reason == "PodInitializing" || w.Reason == "ContainerCreating" {
			continue
		}
		if s.checks(c.Name) {
			return &present{Code: status.CodeBypassing, Sentence: fmt.Sprintf("The mesh's own check in this pod, container %s, fails (%s): most likely the pod's traffic is not redirected.", c.Name, w.Reason), Because: s.notReady(), exit: ExitWrong,
				Do: s.mendFirst("See what it has tried: "+s.kubectl(fmt.Sprintf("logs %s --container %s", s.pod.Name, c.Name)), explain.Restart(s.pod))}
		}
		p := &present{Code: status.CodeNotRunning, Sentence: fmt.Sprintf("Container %s of this pod does not run (%s).", c.Name, w.Reason), Because: bounded([]string{w.Message}), Do: []string{
			"See why: " + s.kubectl(fmt.Sprintf("logs %s --container %s --previous", s.pod.Name, c.Name)) + ", and " + s.kubectl("describe pod "+s.pod.Name),
		}}
		switch { // one that has never run has no log
		case strings.Contains(w.Reason, "Image"):
			p.Sentence = fmt.Sprintf("Container %s of this pod does not run (%s): its image cannot be had. That has nothing to do with the mesh.", c.Name, w.Reason)
			p.Do = []string{"Correct the image in the pod's manifest, or see that the node may pull it: " + s.kubectl("describe pod "+s.pod.Name)}
		case strings.HasPrefix(w.Reason, "CreateContainer"):
			p.Do = []string{"See why: " + s.kubectl("describe pod "+s.pod.Name)}
		}
		return p
	}
	return nil
}

// checks reports whether a container is that with which the mesh checks redirection.
func (s *subject) checks(container string) bool {
	return s.deciding != nil && slices.ContainsFunc(slices.Collect(s.deciding.meshes.All()), func(d dialect.Dialect) bool { return d.Validation.Container == container && container != "" })
}

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
)

// writeStatus says on the pod that its rules are in place, where that is configured and its mesh has an annotation for
// it. The patch names the pod's UID, so that it is refused when another pod has taken the name.
func (c *call) writeStatus(ctx context.Context) error {
	if !c.config.WriteStatus || len(c.applied) == 0 {
		return nil
	}
	live := maps.Clone(c.pod.Annotations)
	maps.DeleteFunc(live, func(key, _ string) bool { _, ours := c.applied[key]; return !ours })
	if maps.Equal(live, c.applied) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": c.pod.UID, "annotations": c.applied}})
	if err != nil {
		return fmt.Errorf("make patch: %w", err)
	}
	pods, failure := c.openPods()
	if failure != nil {
		return failure
	}
	defer closePods(pods)
	patcher, ok := pods.(Patcher)
	if !ok {
		return errors.New("the source of pods cannot write")
	}
	c.event.apiCalls++
	return patcher.PatchPodStatus(ctx, c.id.namespace, c.id.name, patch)
}

//go:build linux

package daemonset

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	nodeapi "github.com/meshcni/meshcni/internal/node/api"
)

// object is the metadata of an object. Nothing else is requested until the end.
type object = metav1.PartialObjectMetadata

// api makes the requests.
type api struct{ source Source }

// connect returns the client.
func (a *api) connect() (*nodeapi.Client, error) {
	client, err := a.source.API()
	if err != nil {
		return nil, fmt.Errorf("prepare to ask the API server: %w", err)
	}
	return client, nil
}

// get reads an object; nil if there is none. The namespace of one without is "".
func (a *api) get(ctx context.Context, r schema.GroupVersionResource, namespace, name string) (*object, error) {
	client, err := a.connect()
	if err != nil {
		return nil, err
	}
	o, err := client.GetOne(ctx, r, namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case o.UID == "":
		return nil, errors.New("the API server's answer is not an object")
	}
	return o, nil
}

// listTimeout bounds a request to a server that never answers.
const listTimeout = 30 * time.Second

// list reads the DaemonSet, nil if there is none. A watch starts at the list's version, because the server may have
// forgotten that of the object.
func (a *api) list(ctx context.Context) (found *object, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	client, err := a.connect()
	if err != nil {
		return nil, "", err
	}
	list, err := client.ListOne(ctx, nodeapi.DaemonSets, a.source.Namespace, a.source.Name, metav1.ListOptions{})
	if err != nil {
		return nil, "", err
	}
	if list.ResourceVersion == "" {
		return nil, "", errors.New("the API server's answer is not a list")
	}
	for i := range list.Items {
		if list.Items[i].Name == a.source.Name {
			found = &list.Items[i]
		}
	}
	return found, list.ResourceVersion, nil
}

// watch calls note with each change of the DaemonSet since a version, until the server ends the watch, which it does after
// some minutes. The next watch starts at the version that it returns.
func (a *api) watch(ctx context.Context, since string, note func(*object)) (version string, err error) {
	lasts := int64(300 + rand.IntN(300)) //nolint:gosec // spreads nodes, keeps no secret
	ctx, cancel := context.WithTimeout(ctx, time.Duration(lasts)*time.Second+listTimeout)
	defer cancel()
	client, err := a.connect()
	if err != nil {
		return since, err
	}
	w, err := client.WatchOne(ctx, nodeapi.DaemonSets, a.source.Namespace, a.source.Name, metav1.ListOptions{
		ResourceVersion: since, AllowWatchBookmarks: true, TimeoutSeconds: &lasts,
	})
	if err != nil {
		return since, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		o, ok := event.Object.(*object)
		switch {
		case event.Type == watch.Error: // 410, for one: the version is too old
			return since, apierrors.FromObject(event.Object)
		case !ok:
			return since, fmt.Errorf("watch: the API server sent a %T", event.Object)
		case event.Type == watch.Deleted:
			note(nil)
		case event.Type != watch.Bookmark:
			note(o)
		}
		since = o.ResourceVersion
	}
	return since, ctx.Err()
}

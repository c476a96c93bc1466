//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/plugin/netconf"
)

// The bounds of --token-lifetime: the API server's own least (ValidateTokenRequest of Kubernetes), and the most that is still
// short-lived.
const (
	leastLifetime = netconf.Duration(10 * time.Minute)
	mostLifetime  = netconf.Duration(24 * time.Hour)
)

// extended is the lifetime that API servers extend to a year unless told otherwise (--service-account-extend-token-expiration).
const extended = netconf.Duration(3607 * time.Second)

func validateLifetime(d netconf.Duration) error {
	switch {
	case d < leastLifetime || d > mostLifetime:
		return fmt.Errorf("token-lifetime %s: must be between %s and %s", d, leastLifetime, mostLifetime)
	case time.Duration(d)%time.Second != 0:
		return fmt.Errorf("token-lifetime %s: must be whole seconds", d)
	case d == extended:
		return fmt.Errorf("token-lifetime %s: API servers extend exactly this one to a year; choose another", d)
	}
	return nil
}

// pluginToken returns how the agent gets a token for the plugin: of a service account of the plugin's own, bound to this node's
// object. It is nil if the plugin is to have the agent's own.
func (o Options) pluginToken(s Config) func(context.Context) (string, error) {
	if s.PluginServiceAccount == "" || s.Alone {
		return nil
	}
	return func(ctx context.Context) (string, error) {
		value, err := o.requestToken(ctx, s)
		if err != nil {
			return "", fmt.Errorf("request a token of service account %s/%s: %w", s.Plugin.PodNamespace, s.PluginServiceAccount, err)
		}
		return value, nil
	}
}

func (o Options) requestToken(ctx context.Context, s Config) (string, error) {
	if s.Node == "" {
		return "", fmt.Errorf("--node-name (NODE_NAME) is not set, so it can be bound to no node: %w", errors.ErrUnsupported)
	}
	client, err := o.client(s)
	if err != nil {
		return "", err
	}
	seconds := int64(time.Duration(s.TokenLifetime) / time.Second)
	value, err := client.Token(ctx, s.Plugin.PodNamespace, s.PluginServiceAccount, authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		// Without a UID, which the agent need not be allowed to read, the API server takes that of the present object.
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: s.Node},
	})
	if apierrors.IsBadRequest(err) { // by default up to Kubernetes 1.30
		return "", fmt.Errorf("the API server binds no tokens to nodes (feature ServiceAccountTokenNodeBinding): %w: %w", errors.ErrUnsupported, err)
	}
	return value, err
}

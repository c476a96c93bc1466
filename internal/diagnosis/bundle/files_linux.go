package bundle

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/inventory/cnicache"
)

// Records returns the plugin's records of attachments, one a line, without their rules. all are the records themselves.
func Records(known *inventory.Inventory) (text []byte, all []attachment.Record, err error) {
	all, err = known.Records(func(inventory.Row) bool { return true })
	errs := []error{err}
	for _, brief := range all {
		brief.Rules.IPv4, brief.Rules.IPv6 = nil, nil
		line, err := json.Marshal(brief)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		text = append(append(text, line...), '\n')
	}
	return text, all, errors.Join(errs...)
}

// Cache lists the attachments in libcni's cache, one a line. Of their network configurations, which may have secrets, it
// says only whether they have an entry of one of the types.
func Cache(cacheDir string, types []string) ([]byte, error) {
	var b bytes.Buffer
	var errs []error
	if _, err := os.Stat(cacheDir); err != nil {
		errs = append(errs, err)
	}
	lines := 0
	for cached, err := range cnicache.All(os.DirFS(cacheDir)) {
		if lines++; lines > maxEntries {
			break
		}
		if err = cmp.Or(err, cached.Malformed); err != nil {
			errs = append(errs, err)
			continue
		}
		f, err := conflist.Parse(cached.Config)
		ours := "without the plugin"
		for _, typ := range types {
			if err != nil {
				ours = "with a configuration that cannot be read"
			} else if f.Has(typ) {
				ours = "with the plugin " + typ
			}
		}
		fmt.Fprintf(&b, "network %q container %q interface %q pod %q uid %q: %s\n", cached.NetworkName, cached.ContainerID,
			cached.IfName, cached.Pod().Namespace+"/"+cached.Pod().Name, cached.Pod().UID, ours)
	}
	return b.Bytes(), errors.Join(errs...)
}

// kubeconfig holds the fields of one that are looked at.
type kubeconfig struct {
	Clusters []struct {
		Cluster struct{ Server string }
	}
	Users []struct{ User map[string]any }
}

// Kubeconfig tells the scrubber the secrets of a kubeconfig, and returns what is none: the server, and of what kind the
// credentials are.
func Kubeconfig(name string, s *Scrubber) ([]byte, error) {
	text, err := Read(name)
	if err != nil {
		return nil, err
	}
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil {
		return nil, errors.New("no kubeconfig") // the parser's error quotes the text
	}
	var b bytes.Buffer
	for _, c := range k.Clusters {
		fmt.Fprintf(&b, "server %q\n", c.Cluster.Server)
	}
	for _, u := range k.Users {
		for key, v := range u.User {
			secret, isText := v.(string)
			if s.Know(secret); !isText {
				s.Know(leaves(v)...)
			}
			fmt.Fprintf(&b, "user with %q%s\n", key, tokenTimes(secret))
		}
	}
	return b.Bytes(), nil
}

// leaves are the texts in a value.
func leaves(v any) (all []string) {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		for _, inner := range v {
			all = append(all, leaves(inner)...)
		}
	case map[string]any:
		for _, inner := range v {
			all = append(all, leaves(inner)...)
		}
	}
	return all
}

// tokenTimes gives the times at which a JWT was issued and expires, and nothing for another text.
func tokenTimes(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct{ Iat, Exp float64 }
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	at := func(s float64) string { return time.Unix(int64(s), 0).UTC().Format(time.DateTime) }
	return fmt.Sprintf(", issued at %s and valid until %s UTC", at(claims.Iat), at(claims.Exp))
}

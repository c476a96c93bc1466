// Package playground makes and reads links into the playground, the page that explains a pod in the browser. The page's
// whole state is in the fragment of its address, which browsers send to no server.
package playground

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Address is where the playground is published, by .github/workflows/playground.yml.
const Address = "https://meshcni.github.io/meshcni/"

// prefix begins a fragment with a state: the version of its form, and what it is.
const prefix = "#1="

// maxState bounds a state in bytes. A pod rarely has more than 20 KiB, and browsers cut addresses of some MiB.
const maxState = 1 << 20

// State is what the page shows. The page's own code (playground/src/state.ts) has the same fields.
type State struct {
	// Pod and Namespace are YAML or JSON.
	Pod       string `json:"pod"`
	Namespace string `json:"namespace,omitempty"`
	// Config is the plugin's entry in the network configuration, as far as it is about a pod.
	Config json.RawMessage `json:"config,omitempty"`
}

// Link returns the address that opens the page with the state. A state of more than 1 MiB has none.
func (s State) Link() (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode the playground's state: %w", err)
	}
	if len(text) > maxState {
		return "", fmt.Errorf("encode the playground's state: it has %d bytes, more than %d", len(text), maxState)
	}
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestCompression)
	if err != nil {
		return "", err
	}
	if _, err := w.Write(text); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return Address + prefix + base64.RawURLEncoding.EncodeToString(b.Bytes()), nil
}

// Read returns the state of an address that [State.Link] or the page has made.
func Read(link string) (s State, err error) {
	at := strings.Index(link, prefix)
	if at < 0 {
		return s, errors.New("the link has no state of the playground")
	}
	packed, err := base64.RawURLEncoding.DecodeString(link[at+len(prefix):])
	if err != nil {
		return s, fmt.Errorf("read the playground's link: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), maxState+1))
	if err == nil && len(text) > maxState {
		err = fmt.Errorf("it holds more than %d bytes", maxState)
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return State{}, fmt.Errorf("read the playground's link: %w", err)
	}
	return s, nil
}

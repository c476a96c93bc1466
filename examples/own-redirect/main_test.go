package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

const pod = `kind: Pod
metadata: {name: cart, namespace: shop, annotations: {acme.example/skip-ports: "3306"}}
spec: {containers: [{name: cart}, {name: acme-proxy}]}
status: {podIPs: [{ip: 10.244.1.5}]}
`

func TestProgram(t *testing.T) {
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"--version", "acme-redirect v1.0.0\n", 0},
		{"explain -f - --dialect istio", `acme-redirect: --dialect: unknown dialect "istio": known is acme`, 2},
		{"explain -f -", "it cannot be told how it is captured", 1},
		{"explain -f - --namespace-file shop", "pod shop/cart is in the mesh (acme)", 0},
		{"explain -f - --exclude-namespaces shop", "excluded-namespace", 0},
		{"rules -f - --namespace-file shop", ":ACME_OUTPUT", 0},
		{"trace -f - --namespace-file shop --dst 10.96.0.1 --dport 80 --uid 1000", "redirect 7001", 0},
		{"trace -f - --namespace-file shop --dst 10.96.0.1 --dport 3306 --uid 1000", "pass", 0},
		{"cleanup --dry-run", "ACME_*", 0},
	} {
		var said bytes.Buffer
		p := program
		p.Stdin, p.Stdout, p.Stderr = strings.NewReader(pod), &said, &said
		p.ReadFile = func(string) ([]byte, error) { return []byte(`{"metadata": {"name": "shop"}}`), nil }
		assert.Equal(t, c.code, p.Main(t.Context(), strings.Fields(c.args)), "%s: %s", c.args, &said)
		assert.Contains(t, said.String(), c.says, c.args)
	}
}

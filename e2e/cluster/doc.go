// Package cluster tests the chart, the image and the agent on a real node, as a user would: with helm and kubectl. It has
// tests only.
package cluster

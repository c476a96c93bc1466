// Package cluster has the tests of the chart, the image and the agent on a real node, done as a user does them: with
// helm and kubectl. There is nothing in it to import.
package cluster
